"""Files of gdpa: saved values, checkpoints and receipts. They are data, not code."""

from gdpa.base.stored import register
from gdpa.files.errors import DamagedFileError, NewerFormatError, UnavailableError
from gdpa.files.format import VERSION, decode, encode, load, save

__all__ = ["encode", "decode", "save", "load", "register", "VERSION"]
__all__ += ["DamagedFileError", "NewerFormatError", "UnavailableError"]
