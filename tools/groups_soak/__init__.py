"""Members of one group that join, leave, freeze and die at random, and what they saw, judged."""
