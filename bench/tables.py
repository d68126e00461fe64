# SPDX-License-Identifier: Apache-2.0
"""Tables of README.md and doc/BENCHMARKS.md from measurements.

tables.py link SAMPLES DENSE_BYTES [--json]   the samples of bench/link.sh: rate, kind, bytes, seconds
tables.py loco DIRECTORY [--json]             the rounds of bench/link.sh --loco: about.json and what each trainer told
tables.py sync SYNC.json LINK.json            the results of `weft bench --sync --json` and link.sh --json
tables.py fleet FLEET.json                    the results of `weft bench --fleet --json`
tables.py density DENSITY.json                the results of `weft bench --density --json`
tables.py peers BENCH.json                    the results of `weft bench --json`, as the README compares them
"""
import json
import pathlib
import statistics
import sys

LARGE = 7e9  # parameters of the model that figures are scaled to
INTERVAL = 50.0  # seconds of work between two versions
UTILISATION = 0.9
KINDS = {"patch": "patch, 1% changed", "anchor": "whole model, anchor", "plain": "whole model, curl"}


def needed_rate(size):
    """The rate in Mbit/s at which workers are busy for UTILISATION of the time.

    utilisation = interval / (interval + 8 * bytes / rate)
    """
    return 8e-6 * size * UTILISATION / ((1 - UTILISATION) * INTERVAL)


def utilisation(size, megabits):
    return INTERVAL / (INTERVAL + 8e-6 * size / megabits)


def link_results(path, dense):
    """Medians by rate and kind.

    What a transfer costs beside its bytes is: of a patch, its time on the bare link (rate 0); of an anchor, which
    is decoded while it comes, the time to publish it; of a plain file, the time for an empty one.
    """
    samples = {}
    with open(path) as lines:
        for line in lines:
            rate, kind, size, seconds = line.split()
            samples.setdefault((int(rate), kind), []).append((int(size), float(seconds)))

    def bare(kind):
        return statistics.median(seconds for _, seconds in samples[0, kind])

    fixed = {"patch": bare("patch"), "anchor": bare("anchor-fixed"), "plain": bare("plain-fixed")}
    rows = []
    for (rate, kind), values in samples.items():
        if kind not in KINDS:
            continue
        size = statistics.median(size for size, _ in values)
        row = {
            "megabits": rate,
            "kind": kind,
            "wire_bytes": size,
            "seconds": statistics.median(seconds for _, seconds in values),
            "fixed_seconds": fixed[kind],
            "times_fewer_bytes": dense / size,
            "megabits_for_90_percent": needed_rate(size),
            "megabits_for_90_percent_7b": needed_rate(size) * LARGE * 2 / dense,
        }
        if rate > 0:
            row["predicted_seconds"] = fixed[kind] + 8e-6 * size / rate
            row["utilisation_7b"] = utilisation(size * LARGE * 2 / dense, rate)
        rows.append(row)
    return {"dense_bytes": dense, "interval_seconds": INTERVAL, "rows": rows}


def link_table(results):
    yield f"| {results['dense_bytes'] / 1e6:.0f} MB model | link, Mbit/s | bytes on the wire | fewer | s | predicted s |" \
        " Mbit/s for 90% at 50 s | of a 7B model |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for row in results["rows"]:
        if row["megabits"] > 0:
            yield (f"| {KINDS[row['kind']]} | {row['megabits']} | {row['wire_bytes']:,.0f} |"
                   f" {row['times_fewer_bytes']:.1f} x | {row['seconds']:.2f} | {row['predicted_seconds']:.2f} |"
                   f" {row['megabits_for_90_percent']:.2f} | {row['megabits_for_90_percent_7b']:.0f} |")


def loco_results(directory):
    """Medians over trainers and rounds. The first two rounds are left out, for Adam's moments are young, and the last,
    which waits for its own payloads however it overlaps."""
    rows = []
    for place in sorted(pathlib.Path(directory).iterdir(), key=lambda place: int(place.name)):
        row = json.loads((place / "about.json").read_text())
        ranks = [json.loads((place / f"{rank}.json").read_text()) for rank in range(4)]
        rounds = [part for rank in ranks for part in rank["rounds"][2:-1]]
        row["wire_bytes"] /= len(ranks[0]["rounds"])
        row["sent"] = statistics.median(part["sent"] for part in rounds)
        row["seconds"] = statistics.median(part["seconds"] for part in rounds)
        row["wait"] = statistics.median(part["wait"] for part in rounds)
        rows.append(row)
    return {"rows": rows}


def loco_table(results):
    yield "| way | link, Mbit/s | sent by a rank | on the wire, of a round | a round, s | of these waiting, s |"
    yield "|:--|--:|--:|--:|--:|--:|"
    for row in results["rows"]:
        yield (f"| {row['way'].replace(' --', ', ')} | {row['megabits']} | {row['sent']:,.0f} | {row['wire_bytes']:,.0f} |"
               f" {row['seconds']:.1f} | {row['wait']:.1f} |")


def milliseconds(seconds):
    return f"{1e3 * seconds:.1f} ms"


def sync_table(sync, link):
    """The few figures that doc/BENCHMARKS.md has."""
    publish, pause, scaling = sync["publish"], sync["pause"], sync["scaling"]
    latency, bucketing = sync["latency"], sync["bucketing"]
    fast, small = publish["rows"]
    yield "| | | |"
    yield "|---|---|---|"
    for row in (fast, small):
        yield (f"| publish, {row['profile']} | {publish['total'] / 1e9:.3g}B parameters in memory to a directory:"
               f" {milliseconds(row['seconds']['best'])}, {row['bytes_per_change']:.3f} bytes per change |"
               f" {row['to_memcpy']:.2f} of memcpy's speed |")
    yield (f"| pause | {pause['changed']:,} changes of {pause['total'] / 1e6:.0f}M parameters |"
           f" {milliseconds(pause['commit_seconds']['best'])} (memcpy of all:"
           f" {milliseconds(pause['memcpy_seconds'])}) |")
    models = scaling["models"]
    yield (f"| pause by size of model | {scaling['changed']:,} changes of {models[0]['total'] / 1e6:.0f}M and of"
           f" {models[1]['total'] / 1e6:.0f}M parameters, cold caches |"
           f" {milliseconds(models[0]['commit_seconds']['median'])} and"
           f" {milliseconds(models[1]['commit_seconds']['median'])}: {scaling['factor']:.2f} x |")
    seconds = latency["seconds"]
    yield (f"| publish to commit, HTTP | {latency['total'] / 1e6:.0f}M parameters, {latency['versions']} versions,"
           f" {latency['lost']} lost | median {milliseconds(seconds['median'])}, p99 {milliseconds(seconds['p99'])} |")
    ours, single, wide = bucketing["rows"]
    yield (f"| {bucketing['tensors']:,} tensors, HTTP | {ours['requests']} requests, {ours['bytes']:,} bytes, both"
           f" ways; one object per tensor: {single['requests']:,} requests, {single['bytes']:,} bytes |"
           f" {milliseconds(ours['seconds']['best'])}; {milliseconds(single['seconds']['best'])}, 8 at once"
           f" {milliseconds(wide['seconds']['best'])} |")
    catch_up = sync["catch_up"]
    worst = catch_up["rows"][catch_up["worst_row"]]
    yield (f"| {catch_up['missed']} versions missed | the worst of {len(catch_up['rows'])} alignments:"
           f" {worst['fetched_bytes']:,} bytes in {worst['steps']} steps; one by one {worst['replayed_bytes']:,};"
           f" an anchor {catch_up['anchor_bytes']:,} | {100 * catch_up['worst']:.0f}% of the bytes |")
    parts, group = sync["parts"], sync["group"]
    for row in parts["rows"]:
        yield (f"| {parts['processes']} processes with a part each, {row['profile']} |"
               f" {parts['total'] / 1e6:.0f}M parameters: {milliseconds(row['together_seconds']['best'])};"
               f" one process, one thread: {milliseconds(row['alone_seconds']['best'])} |"
               f" {row['ratio']:.2f} of the time |")
    together, apart = group["rows"]
    yield (f"| {group['replicas']} replicas on a host | {group['total'] / 1e6:.0f}M parameters, as a group:"
           f" {together['bytes_per_version']:,.0f} bytes per version, pause {milliseconds(together['pause_seconds']['median'])};"
           f" each alone: {apart['bytes_per_version']:,.0f} bytes, {milliseconds(apart['pause_seconds']['median'])} |"
           f" {milliseconds(together['processor_seconds_per_version'])} of processor time,"
           f" {milliseconds(apart['processor_seconds_per_version'])} alone |")
    if "rows" in link:
        yield ""
        yield from link_table(link)


def mebibytes(size):
    return f"{size / 2**20:.1f} MiB"


def fleet_table(results):
    fleet, relay = results["fleet"], results["relay"]
    seconds = fleet["seconds"]
    yield "| | | |"
    yield "|---|---|---|"
    yield (f"| {results['followers']} followers behind {results['relays']} relays |"
           f" {fleet['total'] / 1e6:.0f}M parameters, {100 * fleet['changed'] / fleet['total']:.1f}% changed,"
           f" {results['versions']} versions, {fleet['lost']} lost; publish to commit |"
           f" median {milliseconds(seconds['median'])}, p99 {milliseconds(seconds['p99'])};"
           f" {fleet['versions_per_second']:.1f} versions/s |")
    index = fleet["page_bytes"] + fleet["head_bytes"]
    yield (f"| what the origin sends | {fleet['origin_bytes']:,} bytes; patches have {fleet['patch_bytes']:,}, pages"
           f" and heads {index:,} | {fleet['origin_share']:.3f} of once to each relay |")
    memory = "; ".join(f"{entry['server']} {mebibytes(entry['early_bytes'])}, {mebibytes(entry['late_bytes'])}"
                       for entry in fleet["memory"])
    yield f"| servers' resident memory | after {fleet['early_versions']} versions, and at the end | {memory} |"
    direct, relayed = relay["direct"], relay["relayed"]
    yield (f"| what a relay adds | one follower, {direct['versions']} versions each way, in turn: median"
           f" {milliseconds(direct['seconds']['median'])} at the origin,"
           f" {milliseconds(relayed['seconds']['median'])} through a relay | {relay['median_ratio']:.2f} x |")
    for entry in results["asked"]:
        yield (f"| {results['followers']} ask an empty relay at once | for one object of {entry['room']},"
               f" {entry['bytes']:,} bytes | {entry['origin_requests']} request to the origin,"
               f" {entry['origin_bytes']:,} bytes |")


# What is sent, by whom; the row of `weft bench`; is it verified, written in place, how does a worker catch up. The last
# three are what these systems do, and not measured.
PEERS = [
    ("whole model (full sync)", "memcpy", "no", "yes", "the newest model"),
    ("index and value, 4 + 2 bytes (SparseRL-Sync, vLLM's sparse updates)", None, "no", "yes", "a full sync"),
    ("COO + zstd-1 (PULSE's patches)", "COO+zstd-1", "hash of the model, afterwards", "no: a new copy",
     "the last full checkpoint, then each patch"),
    ("XOR + zstd-1 by tensor (slime, SkyRL, ARC2)", "XOR+zstd-1", "checksums, afterwards", "yes, no way back",
     "each delta in turn"),
    ("**weft**", "small", "digest, before the first write", "yes, with a rollback", "O(log n) patches, or a snapshot"),
]


def peers_table(results):
    """On one thread, all in one run. Nobody but weft stages a patch: the pause of others is all of decode and apply."""
    rows = {row["name"]: row for row in results["rows"] if row["threads"] == 1}
    model, changed = 2 * results["total"], results["changed"]
    yield "| what is sent | bytes per change | times fewer | pause | verified | in place | catch-up |"
    yield "|---|--:|--:|--:|---|---|---|"
    for text, name, *traits in PEERS:
        row = rows.get(name)
        size = 6 * changed if row is None else row["patch_bytes"] or model
        pause = None
        if row is not None and row["commit_million_changes_per_second"]:
            pause = changed / (1e6 * row["commit_million_changes_per_second"])
        elif row is not None:
            pause = model / (1e9 * row["decode_gb_per_second"])
        cells = ["" if size == model else f"{size / changed:.2f}", f"{model / size:.0f}",
                 "" if pause is None else f"{1e3 * pause:.0f} ms", *traits]
        if name == "small":
            cells = [f"**{cell}**" for cell in cells]
        yield "| " + " | ".join([text, *cells]) + " |"


def density_table(results):
    """Of each profile and of XOR+zstd-1 its bytes, and its speeds as multiples of memcpy's."""
    codecs = ["small", "fast", "XOR+zstd-1"]
    parts = ["bytes per change", "encode", "decode"]
    lines = ["| changed | " + " | ".join(f"{codec}: {part}" if part == parts[0] else part
                                         for codec in codecs for part in parts) + " |",
             "|" + "--:|" * (1 + len(codecs) * len(parts))]
    for point in results["points"]:
        rows = {row["name"]: row for row in point["rows"]}
        cells = [f"{100 * point['density']:.2f}%"]
        for codec in codecs:
            row = rows[codec]
            cells += [f"{row[name]:.3f}" for name in ("bytes_per_change", "encode_to_memcpy", "decode_to_memcpy")]
        lines.append("| " + " | ".join(cells) + " |")
    anchor, size = results["anchor"], 2 * results["total"]
    return [*lines, "", f"Speeds are multiples of memcpy's, which is {results['memcpy_gb_per_second']:.1f} GB/s.",
            f"An anchor of the same model is coded at {anchor['encode_gb_per_second']:.2f} GB/s and has "
            f"{100 * anchor['patch_bytes'] / size:.1f}% of its bytes."]


def main(arguments):
    if arguments[:1] == ["link"] and len(arguments) in (3, 4):
        results = link_results(arguments[1], int(arguments[2]))
        if arguments[3:] == ["--json"]:
            print(json.dumps(results, indent=2))
        else:
            print("\n".join(link_table(results)))
    elif arguments[:1] == ["loco"] and len(arguments) in (2, 3):
        results = loco_results(arguments[1])
        if arguments[2:] == ["--json"]:
            print(json.dumps(results, indent=2))
        else:
            print("\n".join(loco_table(results)))
    elif arguments[:1] == ["sync"] and len(arguments) == 3:
        with open(arguments[1]) as sync, open(arguments[2]) as link:
            print("\n".join(sync_table(json.load(sync), json.load(link))))
    elif arguments[:1] == ["fleet"] and len(arguments) == 2:
        with open(arguments[1]) as fleet:
            print("\n".join(fleet_table(json.load(fleet))))
    elif arguments[:1] == ["density"] and len(arguments) == 2:
        with open(arguments[1]) as density:
            print("\n".join(density_table(json.load(density))))
    elif arguments[:1] == ["peers"] and len(arguments) == 2:
        with open(arguments[1]) as bench:
            print("\n".join(peers_table(json.load(bench))))
    else:
        sys.exit(__doc__)


main(sys.argv[1:])
