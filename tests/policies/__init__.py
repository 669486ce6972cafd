"""Every job field with every kind of schedule, against an oracle that counts by brute force."""
