// No rule is cited here.
