"""The question of a user: which method loses least at the bytes that I can afford, and is that sure?"""
