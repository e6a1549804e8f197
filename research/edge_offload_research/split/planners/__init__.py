"""What no plan needs less than."""
