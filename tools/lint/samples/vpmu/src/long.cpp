// One line too many.
