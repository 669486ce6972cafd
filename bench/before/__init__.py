"""Measures this version beside an earlier commit: passes in turns on one server, compared as ratios.

A figure taken alone says little on a machine whose speed changes from hour to hour. Here both versions run the same
pass within the same minute, many times, and the ratio has an error.
"""
