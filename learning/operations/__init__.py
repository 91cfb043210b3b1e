"""What slots about rewards and advantages are made of: operations on columns of numbers."""
