"""The version, in a file that imports nothing: the build reads it, and so does every site of a federation."""

VERSION = "0.1.0"
