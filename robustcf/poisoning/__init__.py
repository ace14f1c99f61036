"""Fake users."""
