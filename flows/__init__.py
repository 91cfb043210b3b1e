"""What runs when and where; the only home of Prefect and Ray."""
