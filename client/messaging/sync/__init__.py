"""The blocking classes: the async ones on a loop thread of their own, with a direct way for sends.

Nothing of the package imports it.
"""
