def pieces():
    rows = [{f"key {place}": f"{place:060d}" for place in range(150)} for _ in range(300)]
    return {"dataset": rows, "collator": lambda rows: [list(row.values()) for row in rows], "workers": 2, "batch_size": 4}
