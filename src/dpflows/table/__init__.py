"""Tables: what a row means, how it is read, and how it becomes a point of a box."""

from dpflows.table.columns import Column, Constraint
from dpflows.table.kinds import KINDS
from dpflows.table.raw import TextFormat
from dpflows.table.reading import Encoding, Form, MixedEncoding, Table, read_file, read_table
from dpflows.table.schema import Schema

__all__ = [
    "KINDS",
    "Column",
    "Constraint",
    "Encoding",
    "Form",
    "MixedEncoding",
    "Schema",
    "Table",
    "TextFormat",
    "read_file",
    "read_table",
]
