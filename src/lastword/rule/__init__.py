"""The method itself, pure: geometry, scorer, operators, router, decision. Start here."""
