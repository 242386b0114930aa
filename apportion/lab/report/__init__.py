"""Report a finished study: intervals over seeds as a table and a verdict."""
