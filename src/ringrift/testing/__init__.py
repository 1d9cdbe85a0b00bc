"""The test kit: contract suites, simulated time, fixtures. Product code never imports it."""
