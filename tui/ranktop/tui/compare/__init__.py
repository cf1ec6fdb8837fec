"""``ranktop compare``: runs beside each other, aligned by step."""
