"""What one inference is: operators, values and their order, as facts only. Imports nothing of ours."""
