"""Likelihoods and pictures that read real rows; marked NOT PRIVATE unless charged."""
