"""The run-time type checker of the tests: beartype, with whole numbers accepted as floats."""

from beartype import BeartypeConf, beartype

checker = beartype(conf=BeartypeConf(is_pep484_tower=True))
