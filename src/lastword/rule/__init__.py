"""The paper's method as pure functions: geometry, scorer, operators, router and answer."""
