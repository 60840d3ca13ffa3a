"""The silicon check: the same PTX on a real GPU and on the emulator."""
