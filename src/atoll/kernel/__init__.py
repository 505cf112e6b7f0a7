"""One file for each Linux facility; the only place for ioctls, ctypes and namespaces."""
