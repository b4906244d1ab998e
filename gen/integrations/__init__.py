"""gen inside other libraries: transformers' generate draws as gen does, and Outlines 0.0.46 uses gen's samplers."""
