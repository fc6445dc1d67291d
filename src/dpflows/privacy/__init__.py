"""Budgets, guarantees, accountants, mechanisms and ledgers; independent of models and tables."""
