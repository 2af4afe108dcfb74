"""Wait until a service keeps its SLO: `kept.py NAMESPACE NAME`. `helm test` runs it, and ends it when it takes long."""

import json
import subprocess
import sys
import time


def told(namespace: str, name: str) -> tuple[bool, str]:
    """Return whether the service keeps its SLO, and what its status says about that."""
    command = ["holdfast", "status", "--json", f"--namespace={namespace}"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout
    found = [service["status"] for service in json.loads(printed or "[]") if service["name"] == name]
    conditions = {each["type"]: each for status in found for each in status.get("conditions", ())}
    if not {"Ready", "SLOMet"} <= conditions.keys():
        return False, "the operator has not written a status yet; see kubectl logs of its pods"
    ready, slo = conditions["Ready"], conditions["SLOMet"]
    return slo["status"] == "True", ready["message"] if ready["status"] != "True" else slo["message"]


def main() -> None:
    """Print each new message until the SLO is kept."""
    kept, said = False, ""
    while not kept:
        kept, message = told(*sys.argv[1:])
        if message != said:
            print(message, flush=True)
        said = message
        time.sleep(0.0 if kept else 2.0)


main()
