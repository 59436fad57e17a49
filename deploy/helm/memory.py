"""What an edge may have in memory, by its configuration and the bounds of the reference."""
import pathlib
import re

REFERENCE = pathlib.Path(__file__).resolve().parents[2] / "docs/reference"
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9, "Mi": 2**20, "Gi": 2**30}
# Memory for each unit of a key that counts, or that is of the disk: as its description says. Of a stream: its connection and
# what is known of its agent.
FACTORS = {
    "agents.streams": 25 * 10**3,
    "cache.decoders": 8 * 2**20,
    "cache.encoders": 9 * 2**20,
    # 250 bytes for each object; they have a MiB on average, and a sixteenth of that is assumed.
    "cache.disk": 250 / (64 * 2**10),
}


def bytes_of(text):
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", str(text).replace(",", "")).groups()
    return int(number) * UNITS[unit or "B"]


def section(page):
    return re.search(r"^## Edge$(.*?)^## ", (REFERENCE / page).read_text(), re.M | re.S)[1]


def edge(config):
    """The bounds in bytes, by their names."""
    found = {}
    table = ""
    for line in section("configuration.md").splitlines():
        if heading := re.match(r"### `\[*([\w.]+)\]*`$", line):
            table = heading[1]
        elif cells := re.match(r"\| `(\w+)` \| (size|integer) \| `\"?(\w+)\"?` \|", line):
            key, kind, default = cells.groups()
            name = f"{table}.{key}"
            if kind == "size" or name in FACTORS:
                found[name] = bytes_of(config.get(table, {}).get(key, default)) * FACTORS.get(name, 1)
    assert FACTORS.keys() <= found.keys(), f"the reference has not all of {' '.join(FACTORS)}"
    for name, bound in re.findall(r"^\| ([^|]+) \| (\d+ [KMG]iB) \|", section("limits.md"), re.M):
        found[name] = bytes_of(bound.replace(" ", ""))
    return found
