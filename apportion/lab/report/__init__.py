"""Report a finished study: intervals over seeds as tables, sentences and a picture."""
