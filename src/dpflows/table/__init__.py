"""Tables: what a row means, how it is read, and how it becomes a point of a box."""

from dpflows.table.constraints import Constraint
from dpflows.table.encoding import Encoding
from dpflows.table.reading import Form, Table, read_file, read_table
from dpflows.table.schema import KINDS, Column, Schema
from dpflows.table.text_format import TextFormat

__all__ = [
    "KINDS",
    "Column",
    "Constraint",
    "Encoding",
    "Form",
    "Schema",
    "Table",
    "TextFormat",
    "read_file",
    "read_table",
]
