"""Tables: what a row means, how it is read, and how it becomes a point of a box."""

from dpflows.table.columns import Column
from dpflows.table.constraints import Constraint
from dpflows.table.encoding import Encoding, MixedEncoding
from dpflows.table.kinds import KINDS
from dpflows.table.reading import Form, Table, read_file, read_table
from dpflows.table.schema import Schema
from dpflows.table.text_format import TextFormat

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
