"""Undo what a sandbox made on the host: journal, undo, reaper. The same code after a normal end and a crash."""
