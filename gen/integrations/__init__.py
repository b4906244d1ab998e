"""gen inside of other libraries: transformers' generate draws as gen does, and Outlines 0.0.46 uses its samplers."""
