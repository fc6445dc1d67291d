"""What each release costs and who pays. Knows no models."""
