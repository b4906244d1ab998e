"""Every architecture of transformers: are `gen`'s texts and vectors those of the model's own plain forward?"""
