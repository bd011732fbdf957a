"""Pictures: files that are decoded into stores, caches, features, augmentation, and what is there twice."""
