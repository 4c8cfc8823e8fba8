"""Checks configs/deploy by schema and prints its documents: manifests.py SCHEMAS DEPLOY

Prints one JSON object: every document with its file name, and the violations of the schemas.
"""

import json
import pathlib
import sys

schemas, deploy = map(pathlib.Path, sys.argv[1:])
sys.path.insert(0, str(schemas / "python"))

import jsonschema  # noqa: E402
import kubernetes_validate  # noqa: E402
import yaml  # noqa: E402

documents, errors = [], []


def report(file, error):
    location = "/".join(map(str, getattr(error, "path", [])))
    errors.append(f"{file.name}: {location}: {getattr(error, 'message', error)}")


compose = deploy / "compose.yaml"
document = yaml.safe_load(compose.read_text())
documents.append({"file": compose.name, "document": document})
schema = json.loads((schemas / "compose.json").read_text())
for error in jsonschema.validators.validator_for(schema)(schema).iter_errors(document):
    report(compose, error)

for file in sorted((deploy / "kubernetes").glob("*.yaml")):
    for document in yaml.safe_load_all(file.read_text()):
        documents.append({"file": file.name, "document": document})
        for release in ("1.29", "1.37"):
            try:
                kubernetes_validate.validate(document, release, strict=True)
            except Exception as error:
                report(file, error)

json.dump({"documents": documents, "errors": errors}, sys.stdout)
