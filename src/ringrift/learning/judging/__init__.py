"""How strong players are, who is champion, and what results, trends and quality ask for."""
