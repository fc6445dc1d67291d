"""Assembly with scikit-learn manners: budget and rows in, released density out."""
