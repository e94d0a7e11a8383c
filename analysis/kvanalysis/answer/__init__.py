"""The user's question: which method is best at the bytes that I can afford, and is the difference
significant?"""
