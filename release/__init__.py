"""What is released, made without a container engine: image, wheel, chart; the e2e cluster runs the same image."""
