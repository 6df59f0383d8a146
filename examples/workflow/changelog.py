"""Write a changelog from the commits of a repository, commit it, and print three lines about it.

The commits, the files and the diff stay in the sandbox: a model that runs this reads only what is printed.
Run it with: WORKFLOW_DIR=/path/to/repository mcp-bridge --config examples/workflow/mcp-bridge.toml run
examples/workflow/changelog.py
"""

import re

from mcp.servers import filesystem, git

allowed = (await filesystem.list_allowed_directories())["content"]
repository = allowed.splitlines()[-1]

log = await git.git_log(repo_path=repository, max_count=50)
subjects = re.findall(r"Message: '?(.*?)'?$", log, flags=re.MULTILINE)
entries = "".join(f"- {subject}\n" for subject in subjects)
await filesystem.write_file(path=f"{repository}/CHANGES.md", content=f"# Changes\n\n{entries}")

await git.git_add(repo_path=repository, files=["CHANGES.md"])
staged = await git.git_diff_staged(repo_path=repository)
print(f"{len(subjects)} commits found")
print(f"{staged.count('+- ')} lines staged in CHANGES.md")
print((await git.git_commit(repo_path=repository, message="Write the changelog")).split(" with hash")[0])
