"""(see DESIGN.md)"""
