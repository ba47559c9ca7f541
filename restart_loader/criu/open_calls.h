// What the parts of the library in CRIU (criu_library.h) do when CRIU opens a file.
#pragma once

// Called after CRIU has called openat(2). `file`: what openat(2) has returned, with `errno`.
// Returns what CRIU gets. See memory_apart_calls.cc.
int after_open(int directory, const char* name, int flags, int file);

// Called after CRIU has called open64(3), with which it opens files outside of its images. Notes a
// file that CRIU has created. See deleted_files_calls.cc.
void note_created(const char* path, int flags, int file);
// Called when the image of a deleted file does not exist. Returns the image without data, or -1
// with `errno`.
int open_deleted_apart(int directory, const char* name);
// Called when CRIU sets the size of a file. Puts the filled file in the place of a deleted one.
// Returns false with `errno` on an error.
bool fill_deleted(int file);

// Called when CRIU has opened a process's list of pages. See hidden_memory_calls.cc.
void note_page_list(int directory, int file);

// Called when CRIU begins a restore, and has no child yet. See inherited_calls.cc.
void set_inherited();
