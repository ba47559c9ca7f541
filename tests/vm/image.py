"""What a machine boots: the newest Debian kernel installed here, or in another root file system,
and an initramfs that mounts that root file system.

Everything that is the same for all machines is built once and cached in $XDG_CACHE_HOME/ppmr
(~/.cache/ppmr) under a hash of its inputs.
"""
import hashlib
import lzma
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path

from lab.node import LabError

HERE = Path(__file__).resolve().parent
BUSYBOX = Path("/bin/busybox")
UNUSED_MAX_SECONDS = 24 * 3600  # older images are removed; no laboratory runs longer than this

# The kernel loads other modules on demand, from the root file system.
MODULES = (
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_net",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "fuse",
    "tun",
)
SIGNATURE_END = b"~Module signature appended~\n"
SIGNATURE_INFO_BYTES = 12  # struct module_signature; its last four bytes are the signature's length


class CannotRun(LabError):
    """This computer lacks something that virtual machines need. The message names it and the
    remedy."""


def _version_key(path):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def find_kernel(root=Path("/")):
    """Returns (kernel, directory of its modules): the newest kernel that has all MODULES."""
    refused = []
    for kernel in sorted((root / "boot").glob("vmlinuz-*"), key=_version_key, reverse=True):
        modules = root / "usr/lib/modules" / kernel.name.removeprefix("vmlinuz-")
        missing = _missing(modules)
        if not missing:
            return kernel, modules
        refused.append(f"{kernel} lacks {', '.join(missing)}")
    raise CannotRun(
        f"no kernel to boot ({'; '.join(refused) or f'none in {root}/boot'}): run third_party/install, which installs linux-image-amd64"
    )


def find_qemu():
    qemu = shutil.which("qemu-system-x86_64")
    if not qemu:
        raise CannotRun(
            "no qemu-system-x86_64: run third_party/install, which installs qemu-system-x86"
        )
    return qemu


def check_can_run(root=Path("/")):
    """Raises CannotRun if a file or program is missing that booting needs."""
    find_qemu()
    find_kernel(root)
    for program, package in ((BUSYBOX, "busybox-static"), ("cpio", "cpio"), ("modprobe", "kmod")):
        if not shutil.which(program, path="/bin:/usr/bin:/sbin:/usr/sbin"):
            raise CannotRun(f"no {program}: run third_party/install, which installs {package}")


def cached_image(root=Path("/")):
    """(kernel, initramfs without the settings of a machine), built if the cache does not have
    them."""
    kernel, modules = find_kernel(root)
    files = _in_order(MODULES, modules)
    cache = _cache_directory()
    entry = cache / _hash_of([Path(__file__), HERE / "initramfs_init", BUSYBOX, kernel, *files])
    if not entry.exists():
        _build(entry, kernel, files)
    os.utime(entry)
    for other in cache.iterdir():
        if time.time() - other.stat().st_mtime > UNUSED_MAX_SECONDS:
            shutil.rmtree(other, ignore_errors=True)
    return entry / "kernel", entry / "initramfs.cpio"


def _cache_directory():
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(home) / "ppmr/machine-images"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise LabError(
            f"refusing to boot from {directory}: others may write to it; remove it, or set XDG_CACHE_HOME"
        )
    return directory


def _hash_of(files):
    found = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        found.update(f"{file.name} {len(content)}\n".encode() + content)
    return found.hexdigest()[:32]


def _build(entry, kernel, modules):
    """Fills `entry`, which appears completely or not at all."""
    building = Path(tempfile.mkdtemp(dir=entry.parent, prefix="building-"))
    try:
        (building / "kernel").write_bytes(_unpacked_kernel(kernel))
        tree = building / "tree"
        for name in ("bin", "modules"):
            (tree / name).mkdir(parents=True)
        shutil.copy(BUSYBOX, tree / "bin/busybox")
        shutil.copy(HERE / "initramfs_init", tree / "init")
        (tree / "init").chmod(0o755)
        for number, file in enumerate(modules):  # in the order in which they are to be loaded
            name = f"{number:02}-{file.name.removesuffix('.xz')}"
            (tree / "modules" / name).write_bytes(_without_signature(file))
        with open(building / "initramfs.cpio", "wb") as out:
            _archive(tree, out)
        shutil.rmtree(tree)
        building.rename(entry)
    except OSError:
        if not entry.exists():  # no other laboratory has built it in the meantime
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _unpacked_kernel(kernel):
    """Returns the ELF file inside a Debian kernel, which QEMU can start directly (PVH): unpacking
    it in the machine takes longer than the rest of the kernel's start. Returns the kernel unchanged
    if it is packed in another way."""
    packed = kernel.read_bytes()
    start = packed.find(b"\xfd7zXZ\0")
    if start < 0:
        return packed
    try:
        elf = lzma.LZMADecompressor().decompress(packed[start:])
    except lzma.LZMAError:
        return packed
    return elf if elf.startswith(b"\x7fELF") else packed


def _without_signature(module):
    """Removes the signature of a module, and unpacks it: an emulated machine needs longer for that
    than to load the module.
    """
    content = module.read_bytes()
    if module.suffix == ".xz":
        content = lzma.decompress(content)
    if not content.endswith(SIGNATURE_END):
        return content
    end = len(content) - len(SIGNATURE_END)
    signature_bytes = int.from_bytes(content[end - 4 : end], "big")
    return content[: end - SIGNATURE_INFO_BYTES - signature_bytes]


def _dependencies(modules):
    """Returns module name -> (file, names of the modules that it needs), from modules.dep."""
    table = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        file, needs = line.split(":", 1)
        table[_name(file)] = (modules / file, [_name(need) for need in needs.split()])
    return table


def _name(file):
    return Path(file).name.split(".ko", 1)[0].replace("-", "_")


def _built_in(modules):
    return {_name(line) for line in (modules / "modules.builtin").read_text().splitlines()}


def _missing(modules):
    try:
        present = set(_dependencies(modules)) | _built_in(modules)
    except OSError as error:
        return [str(error)]
    return [name for name in MODULES if name not in present]


def _in_order(names, modules):
    """Returns the files of the modules and of all modules that they need, each after those that it
    needs.
    """
    table, built_in, ordered = _dependencies(modules), _built_in(modules), []

    def visit(name):
        if name in built_in:
            return
        file, needs = table[name]
        for need in reversed(needs):  # modules.dep names the most basic module last
            visit(need)
        if file not in ordered:
            ordered.append(file)

    for name in names:
        visit(name)
    return ordered


def make_initramfs(common, settings, directory):
    """Writes directory/initramfs.cpio: the archive `common`, then one with the file `settings`,
    shell variables for initramfs_init and the agent."""
    tree = directory / "initramfs"
    tree.mkdir()
    (tree / "settings").write_text(
        "".join(f"export {key}={shlex.quote(str(value))}\n" for key, value in settings.items())
    )
    image = directory / "initramfs.cpio"
    shutil.copy(common, image)
    with open(image, "ab") as out:
        _archive(tree, out)
    shutil.rmtree(tree)
    return image


def _archive(tree, out):
    names = "\n".join(str(path.relative_to(tree)) for path in [tree, *sorted(tree.rglob("*"))])
    subprocess.run(
        ["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0"],
        input=names.encode(),
        cwd=tree,
        stdout=out,
        check=True,
    )
