"""From sample requests to scored samples."""
