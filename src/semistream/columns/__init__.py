"""The border between Arrow and the kernels: key codes, physical columns, packed rows."""
