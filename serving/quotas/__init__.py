"""What one client id may use of a broker: bytes and requests per second, connections (ADR 52)."""
