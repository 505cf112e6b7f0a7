"""What people call: the embedded Python API, synchronous and asynchronous."""
