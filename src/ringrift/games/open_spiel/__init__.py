"""Games of OpenSpiel behind our contract."""
