"""How strong is who, and how sure is that: pure functions of counted results, for jobs and control alike."""
